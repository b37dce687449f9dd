"""Measurements that alternate their sides within one run: a slow moment of the machine hits both."""
