"""Tests on a device, and programs that they start. Importing the package sets the device up for both."""

import os

from model_repository.engine.llama_cpp.weights import EXACT

# Without this, llama.cpp takes no software device. A number that is there twice makes two devices.
os.environ["GGML_VK_VISIBLE_DEVICES"] = "0,0"
# Read at the start of the first device, and tests start it before an engine does: `write_model` asks llama.cpp.
os.environ.update(EXACT)
