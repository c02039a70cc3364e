#!/usr/bin/env bash
# PPO with a critic in verl: reward and reference on `greentrain serve`; the critic moves and stays on the GPUs.
# See README.md beside this file.
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$HOME/data/gsm8k}
TEMPERATURE=${TEMPERATURE:-1.0}   # of the server's reference too: it refuses another
export GREENTRAIN_URL=${GREENTRAIN_URL:-http://127.0.0.1:8700}
export VERL_USE_EXTERNAL_MODULES=greentrain.rlhf.verl_trainer

DATA=(
    algorithm.adv_estimator=gae
    algorithm.gamma=1.0
    algorithm.lam=0.95
    algorithm.use_kl_in_reward=False                        # True: the barrier comes before the advantages
    data.train_files="$DATA_DIR/train.parquet"
    data.val_files="$DATA_DIR/test.parquet"
    data.train_batch_size=1024
    data.max_prompt_length=512
    data.max_response_length=1024
    data.filter_overlong_prompts=True
)
MODELS=(
    actor_rollout_ref.model.path="$MODEL"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
)
ACTOR=(
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=256
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.entropy_coeff=0
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=1
    actor_rollout_ref.rollout.temperature="$TEMPERATURE"
    actor_rollout_ref.rollout.tensor_model_parallel_size=2
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384
)
CRITIC=(
    critic.model.path="$MODEL"
    critic.model.use_remove_padding=True
    critic.model.enable_gradient_checkpointing=True
    critic.optim.lr=1e-5
    critic.use_dynamic_bsz=True
    critic.ppo_max_token_len_per_gpu=16384
)
OFFLOAD=(
    trainer.v1.trainer_mode=greentrain_sync                 # no reference on the GPUs
    reward.reward_manager.source=importlib                  # the reward model reads prompt and response
    reward.reward_manager.name=OffloadRewardManager
    reward.reward_manager.module.path=pkg://greentrain.rlhf.verl_reward
    reward.num_workers=8
    +greentrain.url="$GREENTRAIN_URL"
)
TRAINER=(
    trainer.use_v1=True
    trainer.critic_warmup=0
    trainer.logger='["console"]'
    trainer.project_name=greentrain
    trainer.experiment_name=ppo
    trainer.n_gpus_per_node=8
    trainer.nnodes=1
    trainer.save_freq=20
    trainer.test_freq=5
    trainer.total_epochs=15
)

python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" "${MODELS[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${CRITIC[@]}" "${OFFLOAD[@]}" "${TRAINER[@]}" "$@"
