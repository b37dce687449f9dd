"""What stands between a request and the router: who may ask, how much, and in which form."""
