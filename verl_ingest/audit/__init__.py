"""Proof that every line of the files is indexed, was dropped by a rule, or is named as missing."""
