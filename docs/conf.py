"""The site: ``python -m sphinx -W docs site``. Pages are Markdown, API pages come from the docstrings.

With ``-t online``, names of torch, NumPy and JAX become links, which takes their inventories from their sites.
"""

import tomllib
from pathlib import Path

import householder

project = "householder"
author = "the householder developers"
release = householder.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # the script and fonts that draw formulas, as part of the site
    "sphinx_copybutton",
]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(torch|numpy|jax)\..*")]  # known to the inventories alone

autodoc_typehints = "none"  # docstrings have types with their shapes
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
smartquotes = False  # they would change the strings and dots of types
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "inherited-members": "Module, tuple",
    "exclude-members": "cell_type, extra_repr",
}
numpydoc_show_class_members = False  # the directives of the pages list them

intersphinx_mapping = {}
if tags.has("online"):  # noqa: F821 - Sphinx defines it
    intersphinx_mapping = {
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
    }

mathjax3_config = {"chtml": {"scale": 0.9}}  # letters as large as those of the text

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor results

html_theme = "pydata_sphinx_theme"
html_title = "householder"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "quickstart": []}
html_context = {"default_mode": "auto"}
html_theme_options = {"show_prev_next": True, "show_toc_level": 2, "navigation_with_keys": False}

package = tomllib.loads(Path(__file__).parents[1].joinpath("Cargo.toml").read_text("utf-8"))["workspace"]["package"]
if "repository" in package:  # once it is public
    owner, repository = package["repository"].rstrip("/").split("/")[-2:]
    html_theme_options |= {"github_url": package["repository"], "use_edit_page_button": True}
    html_context |= {"github_user": owner, "github_repo": repository, "github_version": "main", "doc_path": "docs"}
