"""Players outside of Ludus: ONNX files with a check, a manifest and a model card, difficulty levels, and pages."""
