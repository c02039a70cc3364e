"""What a training run will cost the climate, before it starts. Imports no torch.

* values, workload, cluster              ranges and assumptions; what is trained, and where
* model_shape, shapes, sized, hf_config, shape_flags, which_model
                                         a transformer's shape: presets, a few flags, a config.json
* accelerator, hardware, projection      devices, each figure with its source; those of later years
* mfu, blend, auto, pilot, hours         hours from published runs, or from the first steps of a run
* roofline, search, layouts, practice    the best layout; with gemm, memory, communication
* power_model, carbon, embodied          joules and grams
* money, sci_units, relations            what else is asked
* scaling_laws, sweeps                   loss by compute; what its points take on a device in a place
* api, text, html, words, actions        all of it as one estimate; as table, page and action table
"""
