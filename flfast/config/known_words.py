"""Words of Lightning, of other frameworks and of scripts, and the settings that they mean here.

The only table of that kind. Torch-free.
"""

_WORDS = {
    "rounds": (
        "comm_round communication_rounds global_rounds gr num_rounds n_rounds max_rounds "
        "num_server_rounds num_communication_rounds central_num_iterations"
    ),
    "local_epochs": (
        "epochs num_epochs n_epochs max_epochs min_epochs ls local_ep local_num_epochs "
        "trainer.max_epochs trainer.min_epochs"
    ),
    "local_steps": (
        "steps num_steps max_steps min_steps num_local_steps trainer.max_steps trainer.min_steps "
        "trainer.max_time"
    ),
    "batch_size": "bs lbs local_bs local_batch_size train_batch_size auto_scale_batch_size",
    "optimizer.lr": (
        "learning_rate local_learning_rate local_lr client_lr lr optimizer.learning_rate"
    ),
    "optimizer.weight_decay": "wd",
    "optimizer": "optim client_optimizer local_optimizer",
    "algorithm": "algo federated_optimizer fl_algorithm aggregator",
    "algorithm=fedopt algorithm.server_optimizer.lr": "server_lr server_learning_rate",
    "model": "arch net network model_name",
    "data": "dataset dataset_name",
    "data.root": "data_dir data_path data_root data_cache_dir root",
    "partition": "partition_method partitioner",
    "partition.alpha": "partition_alpha dirichlet_alpha",
    "partition.num_clients": (
        "num_clients n_clients nc num_users client_num_in_total total_clients num_partitions "
        "num_supernodes"
    ),
    "sampler.fraction": (
        "frac fraction_fit fraction_train join_ratio jr participation_rate client_fraction "
        "sample_fraction eligible_perc"
    ),
    "sampler.count": (
        "cohort_size client_num_per_round clients_per_round num_participants min_fit_clients "
        "min_train_nodes"
    ),
    "sampler=random_size sampler.min_fraction": "random_join_ratio rjr",
    "sampler.dropout": "client_drop_rate cdr",
    "sampler.holdout_clients": "num_new_clients nnc",
    "finetune_epochs": "fine_tuning_epoch_new ften",
    "split.few_shot": "few_shot fs",
    "eval_every": "eval_gap eg eval_interval evaluation_frequency frequency_of_the_test",
    "eval_examples": "fraction_evaluate",
    "stop=plateau stop.patience": "auto_break ab top_cnt tc early_stopping patience",
    "devices=tiers devices.slowdown": "train_slow_rate tsr",
    "devices=lognormal devices.up_mbit": "send_slow_rate ssr",
    "devices=tiers pace.deadline": "time_select ts time_threthold tth",
    "lr_schedule": "scheduler lr_scheduler learning_rate_decay ld",
    "lr_schedule=exponential lr_schedule.scheduler.gamma": (
        "learning_rate_decay_gamma ldg lr_decay"
    ),
    "hparams_search=fedavg_lr": "auto_lr_find",
    "seed": "random_seed manual_seed seeds times prev pv",
    "trainer.accelerator": "device dev using_gpu use_gpu cuda use_cuda no_cuda",
    "trainer.accelerator=gpu trainer.devices": (
        "gpu gpus gpu_id gpu_ids device_id did num_gpus auto_select_gpus"
    ),
    "trainer.accelerator=cpu trainer.devices": "num_processes",
    "trainer.accelerator=tpu trainer.devices": "tpu_cores",
    "trainer.precision": "fp16 bf16 amp amp_backend amp_level mixed_precision",
    "trainer.gradient_clip_val": "clip_grad_norm max_grad_norm grad_clip",
    "trainer.enable_progress_bar": "progress_bar_refresh_rate",
    "trainer.limit_val_batches": "trainer.num_sanity_val_steps",
    "loader.num_workers": "workers",
    "strategy": "trainer.strategy distributed_backend",
    "logger": "trainer.logger",
    "logger=wandb": "wandb use_wandb enable_wandb wandb_project",
    "logger=tensorboard": "tensorboard tb",
    "+callbacks.NAME._target_": "trainer.callbacks",
    "checkpoint.every": "trainer.enable_checkpointing checkpoint_callback save_every save_freq",
    "resume": "resume_from_checkpoint ckpt_path resume_from",
    "init_from": "pretrained pretrained_path load_model",
    "hydra.run.dir, or in Python flfast.run(folder=...)": (
        "trainer.default_root_dir default_root_dir folder output_dir out_dir output_path save_dir "
        "save_path save_folder_name sfn log_dir logdir goal go run_dir workdir"
    ),
    "--nnodes of torchrun, or --nodes of srun": "trainer.num_nodes num_nodes",
    "an algorithm with a loss of your own (docs/own-algorithms.md)": (
        "class_weights class_weight task.class_weights"
    ),
}
"""Our settings, and the words of others for each. A dotted word is a key that is not bare."""

_OURS = {word: ours for ours, words in _WORDS.items() for word in words.split()}


def ours(key: str) -> str | None:
    """The settings that a key of another framework means here; None for an unknown one.

    Signs of the command line in front do not count, nor does the prefix `trainer.`.

    >>> ours("--num-server-rounds"), ours("trainer.gpus"), ours("rounds")
    ('rounds', 'trainer.accelerator=gpu trainer.devices', None)
    """
    word = key.lstrip("+~-").replace("-", "_")
    return _OURS.get(word) or _OURS.get(word.removeprefix("trainer."))


def here_it_is(key: str) -> str:
    """The end of a message about an unknown key that is known elsewhere; empty for others."""
    found = ours(key)
    return f"; here it is {found}" if found else ""
