"""Shockwave and five policies that it is compared with, as a plug-in of RLPTO."""
