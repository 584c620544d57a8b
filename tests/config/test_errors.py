"""Bad input: one clear error, exit code 2, no traceback; before torch wherever that can be."""

import os
import subprocess
import sys
from ast import literal_eval
from importlib.util import find_spec

import pytest
from sampling import others_slow

# What the message must name: key, value, what is allowed.
BEFORE_TORCH = {
    ("batch_size=0",): "batch_size=0: must be greater than or equal to 1 or must be -1",
    ("partition.alpha=-1",): "partition.alpha=-1: must be greater than 0",
    ("rounds=-3",): "rounds=-3: must be greater than or equal to 1",
    ("rounds=2.5",): "rounds=2.5: must be an integer",
    ("lr=0.1",): "unknown key lr; did you mean optimizer.lr?",
    ("alpha=0.1",): "unknown key alpha; did you mean partition.alpha?",
    ("ruonds=3",): "unknown key ruonds; did you mean rounds?",
    ("+ruonds=3",): "unknown key ruonds=3; did you mean rounds?",
    ("partition.alhpa=3",): "unknown key partition.alhpa; did you mean partition.alpha?",
    ("+partition.alhpa=3",): "unknown key partition.alhpa=3; did you mean alpha?",
    ("+trainer.precision=3",): "already at 'trainer.precision'. Leave the + out, or write ++.",
    ("+trainer.precison=3",): "unknown key trainer.precison=3; did you mean precision?",
    ("+optimizer.momentun=3",): "unknown key optimizer.momentun=3; did you mean momentum?",
    ("trainer.max_epochs=3",): "unknown key trainer.max_epochs; here it is local_epochs\n",
    ("trainer.strategy=ddp",): "unknown key trainer.strategy; here it is strategy\n",
    ("task.class_weights=[1,2]",): "here it is an algorithm with a loss of your own",
    ("task.foo=1",): "unknown key task.foo: task is one value, without keys below it",
    ("model.foo=1",): "unknown key model.foo; allowed: model.hidden, model.dropout\n",
    ("foo.bar=1",): "unknown key foo.bar\n",
    ("--rounds", "3"): "--rounds: is no flag; write settings as key=value, here rounds=VALUE",
    ("-gr", "3"): "-gr: is no flag; write settings as key=value, here rounds=VALUE",
    ("-model", "cnn"): "-model: is no flag; write settings as key=value, here model=VALUE",
    ("leaf", "dataset=femnist"): "leaf: is no setting; did you mean data=leaf?",
    ("rounds:3",): "rounds:3: is no setting; allowed: key=value, such as rounds=5",
    ("strategy=fedavg",): "strategy=fedavg: there is no such option; did you mean algorithm=",
    ("algorithm=FedAvg",): "algorithm=FedAvg: there is no such option; did you mean algorithm=fed",
    (
        "experiment=diloco",
        "partition=natural",
        "partition.num_clients=3",
    ): "unknown key partition.num_clients=3; allowed: num_examples, owner, group_size, rest",
    ("+trainer.num_nodes=2",): "trainer.num_nodes=2 is set by flfast; set --nnodes of torchrun",
    ("+trainer.max_epochs=3",): "trainer.max_epochs=3 is set by flfast; set local_epochs",
    ("+trainer.max_time=00:01:00:00",): "is set by flfast; set local_steps",
    ("trainer.precision=8",): "trainer.precision=8: must be '32-true', '16-mixed'",
    ("trainer.fp32_precision=bf16",): "trainer.fp32_precision=bf16: must be 'ieee' or 'tf32'",
    ("trainer.devices=0",): "trainer.devices=0: must be a count >= 1",
    ("last_batch=kep",): "last_batch=kep: must be 'keep', 'drop' or 'pad'",
    ("strategy=dpp",): "strategy=dpp: there is no such option; did you mean dp?",
    ("optimized_metric=val/acc",): "optimized_metric=val/acc: must be one of auto, global/loss,",
    ("stop=plateau", "stop.metric=val/acc"): "stop.metric=val/acc: must be one of auto, global/",
    ("checkpoint.keep_best=global/acc",): "checkpoint.keep_best=global/acc: must be 'val/loss',",
    ("local_epochs=5", "local_steps=4"): "local_epochs=5 local_steps=4: exactly one must be set",
    ("local_epochs=null",): "local_epochs=null local_steps=null: exactly one must be set",
    ("split.val=0.5", "split.test=0.5"): "together they must be < 1",
    ("split.server_examples=-1",): "split.server_examples=-1: must be greater than or equal to 0",
    (
        "split.val=0",
    ): "split.val=0 with optimized_metric=auto: there are none, but optimized_metric needs val",
    (
        "algorithm=fedprox",
        "algorithm.muu=1",
    ): "unknown key algorithm.muu; did you mean algorithm.mu?",
    (
        "algorithm=fedprox",
        "~algorithm.mu",
    ): "algorithm.mu is missing; flfast.algorithms.fedprox.fedprox needs it",
    (
        "data=shakespeare",
        "~data.tokenizer",
    ): "data.tokenizer is missing; flfast.zoo.datamodules.sources.shakespeare.Shakespeare needs",
    ("loader.persistent_workers=true",): "loader.num_workers=0 with loader.persistent_workers=",
    ("batch_size=-1", "trainer.accumulate_grad_batches=2"): "micro_batch bounds memory",
    ("batch_size=all",): "batch_size=all: must be an integer or must be -1 or 'auto'",
    ("batch_size=auto", "micro_batch=8"): "allowed: batch_size=a number, or micro_batch=null",
    ("batch_size=auto", "schedule=adaptive"): "or schedule.adapt.action=halve_lr",
    ("init_from=nowhere.pt",): "init_from=nowhere.pt: there is no such file",
    ("sampler=from_file",): "sampler.path is missing; set it",
    ("sampler=from_file", "sampler.path=no.csv"): "sampler.path=no.csv: there is no such file",
    ("model._target_=nowhere.net",): "model._target_=nowhere.net: there is no module nowhere",
    ("model._target_=flfast.models.cnn.cmm",): "there is no cmm in flfast.models.cnn",
    ("model.hidden=[0]",): "model.hidden=[0]: must be greater than or equal to 1",
    ("rounds=[",): "rounds=[: no viable alternative",
    ("optimizer.lr=${nothing}",): "optimizer.lr: Interpolation key 'nothing' not found",
    ("mode=local_only", "bn=local"): "mode=local_only with bn=local: nothing is sent",
    ("mode=local_only", "local_optimizer_state=average"): "local_optimizer_state=keep or reset",
    ("trainer.limit_train_batches=0",): "trainer.limit_train_batches=0: must be greater than 0",
    ("strategy.name=dpp",): "strategy.name=dpp: must be 'auto', 'single', 'dp', 'ddp' or 'fsdp'",
    ("strategy.name=fsdp",): "strategy.name=fsdp strategy.group_params=null: fsdp needs this",
    (
        "strategy=ddp",
        "+strategy.group_params=5",
    ): "strategy.group_params=5: fsdp needs this option and no other",
    (
        "strategy=fsdp",
        "+strategy.shard=batch",
    ): "strategy.shard=batch with strategy=fsdp: only ddp",
    ("strategy=fsdp", "strategy.group_params=0"): "strategy.group_params=0: must be greater than",
    ("strategy=fsdp", "+trainer.inference_mode=true"): "gathered in inference mode cannot be",
    ("adapter=lora", "adapter.rank=1000000000"): "adapter.rank=1000000000: must be less than or",
    ("data=hf", "data.vocabulary_size=2"): "data.vocabulary_size=2: must be greater than or equal",
    (
        "data=text_folder",
        "data.vocabulary_size=1",
    ): "data.vocabulary_size=1: must be greater than or equal to 3",
    (
        "schedule.phases=[{from: 2, overrides: [optimizer.lr=0.5, +model.a=b]}]",
    ): """write schedule.phases='[{from: 2, overrides: ["optimizer.lr=0.5", "+model.a=b"]}]'""",
    ("adapter=lora", "adapter.rank=0"): "adapter.rank=0: must be greater than or equal to 1",
    ("client_states=disc",): "client_states=disc: must be 'auto', 'ram' or 'disk'",
    ("finetune_epochs=-1",): "finetune_epochs=-1: must be greater than or equal to 0",
    ("finetune_epochs=2", "mode=centralized"): "there are no clients, but finetune_epochs needs",
    ("sampler.holdout_clients=1.0",): "sampler.holdout_clients=1.0: must be",
    ("sampler.holdout_clients=-1",): "sampler.holdout_clients=-1: must be",
    ("sampler.fractoin=1",): "unknown key sampler.fractoin",
    ("lr_schedule=exponential", "lr_schedule.gamma=0.5"): "mean lr_schedule.scheduler.gamma?",
    ("lr_schedule.gamma=0.9",): "mean lr_schedule=exponential lr_schedule.scheduler.gamma?",
    ("lr_schedule=cosine", "lr_schedule.scheduler.T_max=0"): "scheduler.T_max=0: must be greater",
    ("lr_schedule=cosine", "lr_schedule.scheduler.eta_min=-1"): "eta_min=-1: must be greater",
    ("lr_schedule=step", "lr_schedule.scheduler.step_size=0"): "step_size=0: must be greater",
    ("algorithm.mu=1",): "unknown key algorithm.mu; it belongs to algorithm=",
    (
        "model=custom",
        "model._target_=a.b",
        "model.width=3",
    ): "unknown key model.width; it belongs to model=transformer",
    (
        "model=custom",
        "model._target_=a.b",
        "model.breadth=3",
    ): "unknown key model.breadth; to pass it to model._target_ write +model.breadth",
    ("data.root=/tmp/ä",): "data.root=/tmp/ä: Hydra reads such characters in quotes only",
    ("selection=oort", "selection.cuont=2"): "selection.cuont; did you mean selection.count?",
    ("selection=power_of_choice", "selection.count=0"): "selection.count=0: must be greater than",
    (
        "selection=power_of_choice",
        "selection.count=2",
        "selection.exploration=0.5",
    ): "unknown key selection.exploration; it belongs to selection=oort",
    (
        "selection=oort",
        "selection.count=2",
        "selection.clip=0",
    ): "selection.clip=0: must be greate",
    (
        "selection=oort",
        "selection.count=2",
        "selection.decay=2",
    ): "selection.decay=2: must be less",
    ("selection=ort",): "selection=ort: there is no such option; did you mean oort?",
    (
        "selection=oort",
        "selection.count=2",
        "mode=local_only",
    ): "mode=local_only with selection=oort: nothing is sent, but selection needs",
    ("sampler.dropout=1.0",): "sampler.dropout=1.0: must be less than 1",
    ("sampler.count=3", "sampler.fraction=0.5"): "both set the size of cohorts",
    (
        "schedule.phases=[{from: 0, overrides: []}]",
    ): "schedule.phases[0].from=0: rounds begin at 1; allowed: another round, or -1",
    (
        "schedule.phases=[{from: 2, overrides: []}, {from: 2, overrides: []}]",
    ): "schedule.phases[1].from=2: two phases start there; allowed: another round",
    ("optimizer=adam", "optimizer.betas=[0.5]"): "at least 2 items",
    ("+trainer.enable_checkpointing=true",): "is set by flfast",
    ("model={_target_: a.b, width: 3}",): "model is a config group; allowed: cnn, cnn1d, custom",
    ("algorithm=[fedavg,fedprox]",): "only the last would act; one run for each: -m algorithm=fed",
    ("+trainer.sync_batchnorm=true",): "needs strategy=ddp strategy.shard=batch on GPUs",
    ("model=custom",): "model._target_ is missing; set it",
    ("aggregation=trimmed_mean", "aggregation.trim=0.5"): "trim=0.5: must be less than 0.5",
    ("aggregation=krumm",): "aggregation=krumm: there is no such option; did you mean krum?",
    ("secure=masks", "aggregation=median"): "with secure=masks: it reads single uploads",
    ("secure=masks", "faults=simulated"): "allowed: faults.broken=0, or secure=none",
    ("secure=masks", "upload_clip_norm=1"): "allowed: upload_clip_norm=null, or secure=none",
    ("secure=masks", "secure.bits=63"): "secure.bits=63: must be less than or equal to 62",
    ("attack=sign_flip", "attack.fraction=1.5"): "attack.fraction=1.5: must be less than or equal",
    ("attack=sign_flip", "mode=centralized"): "mode=centralized with attack=sign_flip: nothing",
    ("faults=simulated", "faults.corruption=worse"): "corruption=worse: must be 'not_finite'",
    ("pace.deadline=0",): "pace.deadline=0: must be greater than 0",
    ("upload_clip_norm=0",): "upload_clip_norm=0: must be greater than 0",
    (
        *("--cfg", "job", "-p", "optimizer"),
        "model=lstm",
        "optimizer.momentum=0.5",
    ): "unknown key optimizer.momentum; it belongs to optimizer=muon, optimizer=sgd",
}

if find_spec("mlflow") is None:
    BEFORE_TORCH["logger=mlflow",] = (
        "logger=mlflow: mlflow is not installed; install flfast[mlflow]"
    )

EARLY = "_target_: lightning.pytorch.callbacks.EarlyStopping"
NUM_SERVER = "split.server_examples=100"
SWA = "{_target_: lightning.pytorch.callbacks.StochasticWeightAveraging, swa_lrs: 0.1}"
PLATEAU = "{_target_: torch.optim.lr_scheduler.ReduceLROnPlateau, _partial_: true}"


# One for each place in `main` that finds an error. The others go through these places without it.
BY_COMMAND = {
    ("rounds=-3",),
    ("partition.alhpa=3",),
    ("+trainer.precision=3",),
    ("data.root=/tmp/ä",),
    ("model=custom",),
    ("rounds=[",),
    ("strategy=dpp",),
    ("init_from=nowhere.pt",),
    ("logger=mlflow",),
    ("--cfg", "job", "-p", "optimizer", "model=lstm", "optimizer.momentum=0.5"),
    ("schedule.phases=[{from: 0, overrides: []}]",),
    ("schedule.phases=[{from: 2, overrides: []}, {from: 2, overrides: []}]",),
}

ANSWERS = """
import contextlib, gc, io, sys
gc.disable()
import quick_hydra
from flfast.config.check import check
from flfast.config.command_line import check_overrides
from flfast.config.composition import compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.train import CONF, main
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

def steps(overrides):
    try:
        check_overrides(overrides)
        # The default logger asks for the folder of a job.
        check(without_hydra(compose(["logger=none", *overrides])))
    except (ConfigError, HydraException, OmegaConfBaseException, OSError) as error:
        sys.exit(explain(error))

def answer(overrides, call):
    sys.argv = ["flfast", *overrides]
    said, code = io.StringIO(), 0
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            call()
        except SystemExit as stop:
            code = stop.code
    print(repr((code, said.getvalue(), "torch" in sys.modules)))

for words in CASES:
    if words in BY_COMMAND:
        answer((*words, "hydra.run.dir=run"), main)
    else:
        answer(words, lambda: steps(list(words)))
answer(["--help"], main)
answer(["--cfg", "job"], main)
"""
"""A process that answers to all cases: (exit code, what was said, is torch imported)."""


ALL = [*BEFORE_TORCH]
SOME = [words for n, words in enumerate(ALL) if n % 9 == 0 or words in BY_COMMAND]


@pytest.mark.parametrize("cases", others_slow([SOME, ALL], [SOME]), ids=len)
def test_one_clear_error_before_torch_is_imported(tmp_path, root, cases):
    process = subprocess.run(
        [sys.executable, "-c", f"CASES, BY_COMMAND = {cases!r}, {BY_COMMAND!r}\n{ANSWERS}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "tests"), str(root)])},
    )
    assert process.returncode == 0, process.stderr
    *found, help_page, config = map(literal_eval, process.stdout.strip().splitlines())
    for words, (code, said, torch_imported) in zip(cases, found, strict=True):
        assert BEFORE_TORCH[words] in said, words
        assert code == 2, words
        assert "Traceback" not in said, words
        assert not torch_imported, words
    assert "== Everyday commands ==" in help_page[1]
    assert "\nbatch_size: 10\n" in config[1]
    assert not config[2]


BEFORE_TRAINING = [
    (("model=cnn",), "needs images of at least 16x16"),
    (("data=mnist", "data.root={tmp}/nothing", "data.download=false"), "data.root"),
    (("data=pfllib", "data.root={tmp}/nothing", "partition=natural"), "nothing"),
    (
        ("optimized_metric=personal/loss",),
        "optimized_metric=personal/loss will not be measured",
    ),
    (("partition=natural",), "partition=natural needs data that names its clients"),
    (("partition.num_clients=500",), "min_samples"),
    (("sampler.count=11",), "sampler.count=11 exceeds the population"),
    (("sampler.count=9", "sampler.holdout_clients=2"), "allowed: 1 to 8"),
    (("sampler.holdout_clients=10",), "leaves none of 10 clients to train"),
    (("sampler.holdout_clients=2", "split.test=0"), "held-out clients have no test data"),
    (("finetune_epochs=2", "split.test=0"), "no client has test data of its own"),
    (("aggregation=krum", "aggregation.num_byzantine=4"), "needs 11 uploads for aggre"),
    (
        ("secure=masks", "secure.bits=16"),
        "more than secure.precision=1e-06; allowed: ",
    ),
    (
        ("secure=masks", "algorithm=fedfomo"),
        "of each client, but secure needs a server that uses only the sum",
    ),
    (
        ("secure=masks", "algorithm=fedas"),
        "algorithm=fedas with secure=masks: its weights are not numbers of examples, but",
    ),
    (
        (
            "selection=power_of_choice",
            "selection.count=4",
            "aggregation=krum",
            "aggregation.num_byzantine=1",
        ),
        "needs 5 uploads for aggregation=krum, and selection.count=4 of them count; allowed",
    ),
    (
        ("selection=power_of_choice", "selection.count=4", "algorithm=fedper"),
        "selection=power_of_choice with algorithm=fedper: clients measure the loss of the",
    ),
    (
        ("algorithm=feddf",),
        "split.server_examples=0 with algorithm=feddf: there are none, but algorithm "
        "needs examples of the server; allowed: split.server_examples=1 or more",
    ),
    (
        ("split.server_examples=99999",),
        "server_examples=99999 leaves none of 1438 training ex",
    ),
    (
        ("data=synthetic", "data.num_examples=120", "partition=natural", NUM_SERVER),
        "split.server_examples=100 leaves no training example to client",
    ),
    (
        ("model=resnet18", "algorithm=feddf", "bn=local", NUM_SERVER),
        "(bn=local) with algorithm=feddf, which trains the whole model on the server; use",
    ),
    (("optimized_metric=local/accuracy", "split.test=0"), "will not be measured"),
    (("algorithm=local", "optimized_metric=val/accuracy"), "allowed: personal, personal_val"),
    (("checkpoint.keep_best=personal_val/loss",), "keep_best=personal_val/loss will not be"),
    (
        ("algorithm=fedrep", "schedule=adaptive", "schedule.adapt.metric=val/auc"),
        "schedule.adapt.metric=val/auc will not be measured",
    ),
    (
        ("+trainer.val_check_interval=500", "trainer.limit_val_batches=1"),
        "trainer.val_check_interval is larger than a client's number of batches",
    ),
    (("init_from={tmp}/text.pt",), "text.pt holds no weights"),
    (
        (
            "model=custom",
            "model._target_=torch.nn.Linear",
            "+model.in_features=3",
            "+model.out_features=2",
        ),
        "inputs of shape [1, 8, 8]: model=torch.nn.Linear: RuntimeError",
    ),
    (
        (
            "local_optimizer_state=keep",
            "optimizer=custom",
            "optimizer._target_=torch.optim.LBFGS",
        ),
        "use another optimizer, or local_optimizer_state=reset",
    ),
    (
        (f"+callbacks.swa={SWA}",),
        "would average over clients",
    ),
    ((f"+callbacks.early={{{EARLY}, monitor: val/loss}}",), "limit_val_batches=1.0"),
    ((f"+callbacks.early={{{EARLY}, monitor: val/f1}}",), "allowed: val/loss, with"),
    (("optimizer.nesterov=true",), "Nesterov momentum requires a momentum"),
    (("bn=local", "optimizer.lr=1e18"), "diverged"),
    (
        (f"lr_schedule.scheduler={PLATEAU}",),
        "needs a metric",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "message"),
    others_slow(BEFORE_TRAINING, BEFORE_TRAINING[::16]),
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_one_clear_error_before_training_starts(flfast_run, capsys, tmp_path, overrides, message):
    (tmp_path / "text.pt").write_text("no weights")
    filled = [override.replace("{tmp}", str(tmp_path)) for override in overrides]
    with pytest.raises(SystemExit) as stop:
        flfast_run("callbacks=none", "engine=eager", *filled)
    found = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in found
    assert "Traceback" not in found


@pytest.mark.slow
def test_the_full_error_is_there_for_who_asks(tmp_path):
    process = subprocess.run(
        [sys.executable, "-m", "flfast.train", "rounds=-3", f"hydra.run.dir={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HYDRA_FULL_ERROR": "1"},
    )
    assert process.returncode == 1
    assert "Traceback" in process.stderr
