#!/usr/bin/env bash
# PPO with a critic in OpenRLHF: reward and reference on `greentrain serve`, 4 GPUs for the actor, 2 for the critic and
# 2 for vLLM, so that actor, critic and reference score at the same time. See README.md beside this file.
set -euo pipefail

MODEL=${MODEL:-OpenRLHF/Llama-3-8b-sft-mixture}
TEMPERATURE=${TEMPERATURE:-1.0}   # of the server's reference too: it refuses another
export GREENTRAIN_URL=${GREENTRAIN_URL:-http://127.0.0.1:8700}

python3 -m greentrain.rlhf.openrlhf_reference \
    --reward.remote_url "$GREENTRAIN_URL/get_reward" \
    --ref.num_nodes 1 \
    --ref.num_gpus_per_node 1 \
    --actor.num_nodes 1 \
    --actor.num_gpus_per_node 4 \
    --critic.num_nodes 1 \
    --critic.num_gpus_per_node 2 \
    --vllm.num_engines 2 \
    --vllm.tensor_parallel_size 1 \
    --vllm.gpu_memory_utilization 0.9 \
    --vllm.sync_backend nccl \
    --actor.model_name_or_path "$MODEL" \
    --critic.model_name_or_path "$MODEL" \
    --algo.advantage.estimator gae \
    --algo.advantage.gamma 1.0 \
    --algo.advantage.lambd 0.95 \
    --algo.kl.init_coef 0.01 \
    --rollout.batch_size 1024 \
    --rollout.micro_batch_size 16 \
    --rollout.n_samples_per_prompt 1 \
    --rollout.temperature "$TEMPERATURE" \
    --train.batch_size 128 \
    --train.micro_batch_size 8 \
    --train.max_epochs 1 \
    --data.max_len 2048 \
    --data.max_samples 100000 \
    --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 \
    --data.input_key context_messages \
    --data.apply_chat_template \
    --actor.adam.lr 5e-7 \
    --critic.adam.lr 9e-6 \
    --actor.gradient_checkpointing_enable \
    --ds.zero_stage 3 \
    --ds.param_dtype bf16 \
    --ckpt.output_dir "${OUTPUT:-./checkpoints/ppo}" \
    "$@"
