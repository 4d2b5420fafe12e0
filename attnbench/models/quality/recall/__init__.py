"""Multi-query associative recall: small models trained with each variant, and what they recall.

The task is that of "Zoology" (Arora and others, arXiv:2312.04927); that what is recalled goes with
the size of the state is from "Based" (Arora and others, arXiv:2402.18668).
"""
