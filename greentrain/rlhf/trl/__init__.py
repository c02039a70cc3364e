"""TRL with its frozen passes offloaded.

* reward, yaml_reward     reward functions for GRPO, RLOO and online DPO; one of them from a recipe alone
* reference, attach       a reference model for a stock trainer; what all of this takes for granted of TRL
* grpo, rloo, ahead       trainers that wait for a pass only where its numbers are read; rollouts that wait, logged
* precompute              reference log-probabilities of DPO's and KTO's data
"""
