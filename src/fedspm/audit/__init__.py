"""What an honest but curious server, and whoever uses the served model, could learn of rows: `fedspm audit RUN`."""
