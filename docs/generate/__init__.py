"""The generators of pages and pictures: `python -m docs.generate.NAME` writes what its docstring says."""
