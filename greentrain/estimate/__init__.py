"""What a training run will cost the climate, before it starts. Imports no torch.

* api, result                    one call for all of it; as table, page, JSON and action table
* workload, cluster, values      what is trained, on what and where; ranges and assumptions
* model_shape, shapes, hf_config a transformer's shape: from flags, a name or a config.json
* hardware                       devices, each figure with its source; those of later years; what they reach in practice
* hours, mfu, pilot              device-hours from published runs, a search, or the first steps of a run
* search, layouts, roofline      the best layout, what it holds in memory, and the time of its step
* power_model, carbon, money     watts, grams and prices
* relations                      the same run otherwise
"""
