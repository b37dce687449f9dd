"""Readers of somebody's own data: folders of images, tables, NumPy archives, data sets in memory."""
