"""From priced cells to rules: planner, plan document, decision. Nothing here imports torch.

This file imports nothing, so that `selfspec_cli.plan.decide` needs only the standard library and
yaml.
"""
