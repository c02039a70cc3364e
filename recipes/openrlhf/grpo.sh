#!/usr/bin/env bash
# GRPO in OpenRLHF: reward and reference on `greentrain serve`, 4 GPUs for the actor and 4 for vLLM. See README.md
# beside this file. With `-m openrlhf.cli.train_ppo_ray` instead only the reward is there.
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
    --vllm.num_engines 4 \
    --vllm.tensor_parallel_size 1 \
    --vllm.gpu_memory_utilization 0.9 \
    --vllm.sync_backend nccl \
    --actor.model_name_or_path "$MODEL" \
    --algo.advantage.estimator group_norm \
    --algo.kl.use_loss \
    --algo.kl.estimator k3 \
    --algo.kl.init_coef 1e-3 \
    --rollout.batch_size 128 \
    --rollout.micro_batch_size 16 \
    --rollout.n_samples_per_prompt 8 \
    --rollout.temperature "$TEMPERATURE" \
    --train.batch_size 1024 \
    --train.micro_batch_size 8 \
    --train.max_epochs 1 \
    --data.max_len 2048 \
    --data.max_samples 20000 \
    --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 \
    --data.input_key context_messages \
    --data.apply_chat_template \
    --actor.adam.lr 5e-7 \
    --actor.gradient_checkpointing_enable \
    --ds.zero_stage 3 \
    --ds.param_dtype bf16 \
    --ckpt.output_dir "${OUTPUT:-./checkpoints/grpo}" \
    "$@"
