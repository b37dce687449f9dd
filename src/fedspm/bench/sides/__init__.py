"""The sides of `fedspm bench peers`: one FedAvg job, each in a process of its own, taking turns."""
