"""Five small components, one config file, one run: data loader, augmentor, preprocessor, model builder, evaluator.

The public names are in `everstep.components`.
"""
