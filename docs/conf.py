"""How the site is built: see `scripts/site.py`."""

from hybridppo import __version__

project = "hybridppo"
author = "the authors of hybridppo"
release = version = __version__
root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/developers/*.md", "notebooks/*.ipynb", "benchmarks/README.md", "CHANGELOG.md"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
napoleon_preprocess_types = False
add_module_names = False

html_theme = "furo"
html_title = "hybridppo"
html_copy_source = False
html_show_sourcelink = False
html_extra_path = ["index.html"]
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
