"""Networks, action distributions and normalisers."""
