"""The objects of a thread in the bucket: HEAD, packs, keys, images."""
