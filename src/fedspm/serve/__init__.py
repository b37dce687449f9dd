"""The routing service: a router, a node at every client, and a page to see it think. docs/serving.md"""
