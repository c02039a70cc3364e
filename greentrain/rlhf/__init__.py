"""The frozen passes of RLHF, reward and reference, beside generation and training.

* kinds, frozen_pass            what a pass is, and where it may run
* engine, ticket                submit, and the barrier at which a result is needed
* run, desk, health, handover   a part under way; what parts share; whether a device is asked; who waits for a queue
* stream, parts, microbatch     rollouts as they finish; batches in parts, and how large a part is best
* stats                         how long a device was busy, and how long the training waited for it
* settings, models, text        what YAML says; compiled models; texts as a model reads them
* opening                       from settings to an engine
* advantages, surrogates        GRPO's, RLOO's, REINFORCE++'s and PPO's arithmetic, for loops of one's own
* step_rewards                  process rewards: a score a step of a completion
"""
