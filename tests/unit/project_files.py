"""Project files for the tests: a good one, the smallest one, and the bad ones with what is said about them."""

from __future__ import annotations

from pytest_clusterqual.model.requirement import QUANTITIES
from pytest_clusterqual.read.project import LARGEST

GOOD = """\
version: 1
project: demo
launcher: {kind: local, nproc_per_node: 2, device: cpu, oversubscribe: true, start_timeout: 90 s, job_timeout: 2 min}
workload:
  model: {layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 1024, vocab: 256, experts: 0}
  optimizer: {name: adamw, lr: 3e-4}
  precision: fp32
  sequence_length: 256
  microbatch: 4
  global_batch: 32
  steps: 20
  seed: 1
  data: {path: corpus.bin}
layouts:
  - {name: ddp}
  - {name: fsdp-ac, fsdp: full, activation_checkpointing: full}
target: {tokens: 2.0e+9, time: 40 h}
memory:
  steps: 4
  require: [{peak: "<= 2 GiB"}, {layout: ddp, headroom: ">= 10 %"}]
fabric:
  collectives: [all_reduce, send_recv]
  sizes: {from: 4 KiB, to: 16 MiB, factor: 4}
  groups: [inter_node, world]
  links: {nic: 400 Gbit/s, nics_per_node: 8}
  require:
    - {collective: all_reduce, group: world, from: 1 MiB, busbw: ">= 80 % of expected"}
    - {collective: send_recv, to: 4 KiB, latency: "< 100 us"}
  budget: 30 s
scaling:
  points: [1, 2, 4]
  repeats: 7
  warmup_steps: 2
  budget: 3 min
  require:
    - {nodes: 2, efficiency: ">= 0.6"}
    - {layout: ddp, step_time: "<= 500 ms"}
full_run:
  steps: 15
  layouts: [fsdp-ac]
  checkpoint: {every: 10, mode: sync}
  failure: {kill_rank: 1, at_step: 12}
  require: [{goodput: ">= 40 %"}, {recovery: "<= 60 s"}]
exceptions:
  - {test: "test_fabric*all_to_all*", reason: "switch firmware, ticket 4711", until: 2027-03-01}
topology:
  gpus_per_node: 8
  gpu: H100
  gpu_memory: ">= 80 GB"
  nics_per_node: 8
  nic_rate: ">= 400 Gbit/s"
  mtu: 4092
  cores_per_node: 96
  numa_nodes: 4
  memory: "> 2 TB"
  clock_tolerance: 5 %
"""
SMALL = """\
version: 1
project: demo
workload:
  model: {layers: 1, hidden: 8, heads: 2, kv_heads: 1, ffn: 16, vocab: 256}
  optimizer: {name: adamw, lr: 0.001}
  precision: bf16
  sequence_length: 16
  microbatch: 1
  global_batch: 4
  steps: 3
  seed: 0
layouts: [{name: ddp}]
"""

KEYS = (
    "version, project, launcher, workload, layouts, target, topology, "
    "memory, fabric, scaling, full_run, decision, purchase, exceptions"
)

# One edit of GOOD each: what stood there, what stands there now, and what is said (after the file's name).
BAD_EDITS: list[tuple[str, str, str | list[str]]] = [
    # The head of the file
    ("version: 1", "version: 2", "1: version: got 2, want 1, the only version this release reads"),
    ("version: 1", 'version: "1"', '1: version: got "1", want a whole number'),
    ("version: 1", "version: true", "1: version: got true, want a whole number"),
    ("version: 1\n", "", "1: version: the key is missing"),
    ("project: demo", "project: 7", "2: project: got 7, want a text"),
    ("project: demo", 'project: " "', '2: project: got " ", want a text of printable characters on one line'),
    ("target: {", "targets: {", "17: targets: unknown key; did you mean target? want one of version, project, "
     "launcher, "
     "workload, layouts, target, topology, memory, fabric, scaling, full_run, decision, purchase, exceptions"),
    # The launcher
    ("kind: local", "kind: local, hosts: [a]",
     "3: launcher.hosts: got hosts for kind local, want kind ssh or mpi, or no hosts"),
    ("kind: local", "kind: slurm, hosts: a",
     "3: launcher.hosts: got hosts for kind slurm, want kind ssh or mpi, or no hosts"),
    ("kind: local", "kind: ssh, address: node1",
     '3: launcher.address: got "node1", want an IPv4 address of this machine such as 10.0.0.1'),
    ("kind: local", "kind: ssh, interface: -x",
     '3: launcher.interface: got "-x", want one word that does not begin with -'),
    ("kind: local", "kind: local, rank_map: snake",
     '3: launcher.rank_map: got "snake", want block, cyclic, nic-near, or [node, device] of each rank, from 0'),
    ("kind: local", "kind: local, rank_map: [[0, 0], [1]]",
     "3: launcher.rank_map: got a list, want block, cyclic, nic-near, or [node, device] of each rank, from 0"),
    ("kind: local", "kind: ssh, hosts: 'a,-o'",
     '3: launcher.hosts: the list: got "-o", want a host: a name cannot begin with -, which ssh reads as an option'),
    ("kind: local", "kind: ssh, hosts: [1]",
     "3: launcher.hosts: got a list, want hosts such as gpu[001-016], or a list of them"),
    ("kind: local", "kind: slurm, slurm: {partition: 'a b'}",
     '3: launcher.slurm.partition: got "a b", want one word that does not begin with -'),
    ("kind: local", "kind: slurm, slurm: {time: 90}", "3: launcher.slurm.time: got 90, want a time such as 20 s"),
    ("kind: local", "kind: k8s", '3: launcher.kind: got "k8s", want local, ssh, slurm or mpi'),
    ("nproc_per_node: 2", "nproc_per_node: 0", "3: launcher.nproc_per_node: got 0, want at least 1"),
    ("nproc_per_node: 2", "nproc_per_node: 2.0", "3: launcher.nproc_per_node: got 2.0, want a whole number"),
    ("device: cpu", "device: tpu", '3: launcher.device: got "tpu", want auto, cpu or cuda'),
    ("oversubscribe: true", "oversubscribe: yes", '3: launcher.oversubscribe: got "yes", want true or false'),
    ("start_timeout: 90 s", "start_timeout: 90",
     "3: launcher.start_timeout: got 90, want a time such as 20 s"),
    ("job_timeout: 2 min", "job_timeout: 0 s",
     '3: launcher.job_timeout: got "0 s", want more than zero, a time such as 20 s'),
    ("job_timeout: 2 min", "job_timeout: 1:30", '3: launcher.job_timeout: got "1:30", want a time such as 20 s'),
    # The workload
    ("hidden: 256", "hiden: 256", ["5: workload.model.hidden: the key is missing",
     "5: workload.model.hiden: unknown key; did you mean hidden? want one of layers, hidden, heads, kv_heads, ffn, "
     "vocab, experts, top_k"]),
    ("hidden: 256", "hidden: 250", "5: workload.model.heads: got 4, want a divisor of hidden 250"),
    ("heads: 4", "heads: 256", "5: workload.model.hidden: got 256, want an even size a head for rotary positions, "
     "not 256 / 256 = 1"),
    ("kv_heads: 2", "kv_heads: 3", "5: workload.model.kv_heads: got 3, want a divisor of heads 4"),
    ("layers: 4", "layers: -4", "5: workload.model.layers: got -4, want at least 1"),
    ("vocab: 256", "vocab: 255", "5: workload.model.vocab: got 255, want at least 256: the data are bytes"),
    ("experts: 0", "experts: -8", "5: workload.model.experts: got -8, want at least 0"),
    ("experts: 0", "experts: 0, top_k: 2", "5: workload.model.top_k: got 2, want at most experts 0"),
    ("experts: 0", "experts: 2, top_k: 3", "5: workload.model.top_k: got 3, want at most experts 2"),
    ("lr: 3e-4", "lr: 3e-4, implementation: loop",
     '6: workload.optimizer.implementation: got "loop", want default, foreach or fused'),
    ("name: adamw", "name: sgd", '6: workload.optimizer.name: got "sgd", want adamw'),
    ("lr: 3e-4", "lr: 0", "6: workload.optimizer.lr: got 0, want more than 0"),
    ("lr: 3e-4", "lr: fast", '6: workload.optimizer.lr: got "fast", want a number'),
    ("lr: 3e-4", "lr: 1e999", "6: workload.optimizer.lr: got inf, want a finite number"),
    ("precision: fp32", "precision: fp8", '7: workload.precision: got "fp8", want fp32, bf16 or fp16'),
    ("  sequence_length: 256\n", "", "4: workload.sequence_length: the key is missing"),
    ("global_batch: 32", "global_batch: thirty", '10: workload.global_batch: got "thirty", want a whole number'),
    ("global_batch: 32", "global_batch: 20",
     ["10: workload.global_batch: got 20, want a multiple of 8 = microbatch 4 x 1 node(s) x 2 rank(s)",
      "10: workload.global_batch: got 20, want a multiple of 16 = microbatch 4 x 2 node(s) x 2 rank(s)"]),
    ("seed: 1", "seed: -1", "12: workload.seed: got -1, want at least 0"),
    ("steps: 20", "steps: 12345678901234567890", "11: workload.steps: got \"12345678901234567890\", want a whole "
     "number"),
    ("path: corpus.bin", "path: corpse.bin", '13: workload.data.path: got "corpse.bin", want a file that exists '
     "(relative to the project file's folder)"),
    ("path: corpus.bin", "path: .", '13: workload.data.path: got ".", want a file that exists '
     "(relative to the project file's folder)"),
    ("sequence_length: 256", "sequence_length: 257", '13: workload.data.path: got "corpus.bin" of 258 bytes, '
     "want at least 259, more than one sequence and its next token"),
    ("data: {path: corpus.bin}", "data: corpus.bin",
     '13: workload.data: got "corpus.bin", want a mapping of keys to values'),
    # The layouts and the target
    ("- {name: ddp}", "- {name: fsdp-ac}", ['16: layouts[1].name: got "fsdp-ac" again, want a different name for each '
     "layout", '20: memory.require[1].layout: got "ddp", want one of fsdp-ac',
     '37: scaling.require[1].layout: got "ddp", want one of fsdp-ac']),
    ("- {name: ddp}", "- {name: a b}", '15: layouts[0].name: got "a b", want a short name of letters, digits, - _ '
     'and . '
     "(it names tests)"),
    ("- {name: ddp}", "- ddp", '15: layouts[0]: got "ddp", want a mapping of keys to values'),
    ("fsdp: full,", "fsdp: half,", '16: layouts[1].fsdp: got "half", want full, grad-op, hybrid or null'),
    ("activation_checkpointing: full", "activation_checkpoint: full", "16: layouts[1].activation_checkpoint: unknown "
     "key; "
     "did you mean activation_checkpointing? want one of name, fsdp, activation_checkpointing, tensor, pipeline, "
     "context, expert, schedule, stages_per_rank"),
    ("- {name: ddp}", "- {name: ddp, tensor: 0}", "15: layouts[0].tensor: got 0, want at least 1"),
    ("- {name: ddp}", "- {name: ddp, tensor: 4}", "15: layouts[0].tensor: got 4, want a divisor of "
     "workload.model.kv_heads 2"),
    ("- {name: ddp}", "- {name: ddp, tensor: 3}", ["15: layouts[0].tensor: got 3, want a divisor of "
     "workload.model.heads 4", "15: layouts[0].tensor: got 3, want a divisor of workload.model.kv_heads 2",
     "15: layouts[0].tensor: got 3, want a divisor of workload.model.ffn 1024", "15: layouts[0].tensor: got 3, want "
     "context x tensor = 3 to divide workload.sequence_length 256"]),
    ("- {name: ddp}", "- {name: ddp, context: 3}", "15: layouts[0].context: got 3, want context x tensor = 3 to divide "
     "workload.sequence_length 256"),
    ("- {name: ddp}", "- {name: ddp, pipeline: 5}", ["15: layouts[0].pipeline: got 5, want at most "
     "workload.model.layers 4", "15: layouts[0].pipeline: got 5, want pipeline x context x tensor = 5 to be at most "
     "4 = 2 node(s) x 2 rank(s)"]),
    ("- {name: ddp}", "- {name: ddp, tensor: 2, pipeline: 4}", "15: layouts[0].pipeline: got 4, want pipeline x "
     "context x tensor = 8 to be at most 4 = 2 node(s) x 2 rank(s)"),
    ("- {name: ddp}", "- {name: ddp, expert: 2}", "15: layouts[0].expert: got 2, want 1: workload.model.experts is 0"),
    ("- {name: ddp}", "- {name: ddp, schedule: gpipe}",
     '15: layouts[0].schedule: got "gpipe", want a pipeline of 2 or more with it'),
    ("- {name: ddp}", "- {name: ddp, pipeline: 2, schedule: interleaved}",
     '15: layouts[0].schedule: got "interleaved", want stages_per_rank of 2 or more with it'),
    ("- {name: ddp}", "- {name: ddp, pipeline: 2, stages_per_rank: 2}",
     "15: layouts[0].stages_per_rank: got 2, want 1, or schedule: interleaved"),
    ("- {name: ddp}", "- {name: ddp, pipeline: 2, schedule: interleaved, stages_per_rank: 3}",
     "15: layouts[0].stages_per_rank: got 3, want pipeline x stages_per_rank = 6 to be at most "
     "workload.model.layers 4"),
    ("tokens: 2.0e+9", "tokens: many", '17: target.tokens: got "many", want a number'),
    ("time: 40 h", "time: 40 GiB", '17: target.time: got "40 GiB", want a time such as 20 s'),
    ("{tokens: 2.0e+9, time: 40 h}", "{tokens: 2.0e+9}", "17: target.time: the key is missing"),
    # Memory
    ("  steps: 4\n", "  steps: 0\n", "19: memory.steps: got 0, want at least 1"),
    ('peak: "<= 2 GiB"', 'peak: "2 GiB"', '20: memory.require[0].peak: got "2 GiB", want "<op> <number> <unit>" with '
     "<=, >=, < or > and a size such as 64 MiB"),
    ('peak: "<= 2 GiB"', "peak: 2", '20: memory.require[0].peak: got 2, want "<op> <number> <unit>" with <=, >=, < '
     'or > '
     "and a size such as 64 MiB"),
    ('peak: "<= 2 GiB"', 'peek: "<= 2 GiB"', "20: memory.require[0].peek: unknown key; did you mean peak? want one of "
     "layout, peak, headroom"),
    ('{peak: "<= 2 GiB"}', "{layout: ddp}", "20: memory.require[0]: got no quantity, want exactly one of peak, "
     "headroom"),
    ('{peak: "<= 2 GiB"}', '{peak: "<= 2 GiB", headroom: "> 0"}',
     "20: memory.require[0]: got peak and headroom, want exactly one of peak, headroom"),
    ('headroom: ">= 10 %"', 'headroom: ">= 10"', '20: memory.require[1].headroom: got ">= 10", which is 1000 %; '
     "want at most 100 %"),
    ('headroom: ">= 10 %"', 'headroom: ">= -10 %"', '20: memory.require[1].headroom: got ">= -10 %", want a level that '
     "is not below zero"),
    ('headroom: ">= 10 %"', 'headroom: ">= 10 % of expected"', '20: memory.require[1].headroom: got ">= 10 % of '
     'expected"'
     ": only fabric quantities have an expected level; want a share or ratio such as 80 % or 0.8"),
    ("layout: ddp, headroom", "layout: dpd, headroom", '20: memory.require[1].layout: got "dpd", did you mean ddp? '
     "want one of ddp, fsdp-ac"),
    # Fabric
    ("collectives: [all_reduce, send_recv]", "collectives: [all_reduce, gather]", '22: fabric.collectives[1]: got '
     '"gather"'
     ", want all_reduce, all_gather, reduce_scatter, all_to_all, all_to_all_v, send_recv or broadcast"),
    ("collectives: [all_reduce, send_recv]", "collectives: []", "22: fabric.collectives: got an empty list, want at "
     "least "
     "1 item(s)"),
    ("collectives: [all_reduce, send_recv]", "collectives: [all_reduce, all_reduce]",
     '22: fabric.collectives[1]: got "all_reduce" again, want each once'),
    ("from: 4 KiB", "from: 0.5 B", "23: fabric.sizes.from: got 0.5 B, want a whole number of bytes"),
    ("from: 4 KiB", "from: 4", "23: fabric.sizes.from: got 4, want a size such as 64 MiB"),
    ("from: 4 KiB", "from: 32 MiB", "23: fabric.sizes.to: got 16 MiB, want at least the 32 MiB of from"),
    ("factor: 4", "factor: 1", "23: fabric.sizes.factor: got 1, want more than 1"),
    ("groups: [inter_node, world]", "groups: world", '24: fabric.groups: got "world", want a list'),
    ("nic: 400 Gbit/s", "nic: 400 Gbit", '25: fabric.links.nic: got "400 Gbit", want a rate such as 300 GB/s'),
    ("{nic: 400 Gbit/s, nics_per_node: 8}", "{}", '27: fabric.require[0].busbw: got ">= 80 % of expected" but no '
     "fabric.links.nic, want what was promised there, such as nic: 400 Gbit/s"),
    ("group: world, from", "group: intra_node, from", ['27: fabric.require[0].group: got "intra_node", want one of '
     "inter_node, world", '27: fabric.require[0].busbw: got ">= 80 % of expected" but no fabric.links.intra_node, '
     "want what was promised there, such as intra_node: 400 Gbit/s"]),
    ("collective: all_reduce", "collective: all_to_all", '27: fabric.require[0].collective: got "all_to_all", want '
     'one of '
     "all_reduce, send_recv"),
    ("from: 1 MiB", "from: 1 GiB", "27: fabric.require[0].from: no size is left, want at least one of 4 KiB, 16 KiB, "
     "64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB"),
    ('busbw: ">= 80 % of expected"', 'busbw: "300GB"', '27: fabric.require[0].busbw: got "300GB", want "<op> <number> '
     '<unit>" with <=, >=, < or > and a rate such as 300 GB/s'),
    ('busbw: ">= 80 % of expected"', 'busbw: ">= 300GB"',
     '27: fabric.require[0].busbw: got "300GB", want a rate such as 300 GB/s'),
    ("to: 4 KiB, latency", "to: 4 B, latency", "28: fabric.require[1].to: no size is left, want at least one of 4 KiB, "
     "16 KiB, 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB"),
    ('latency: "< 100 us"', 'latency: "< 80 % of expected"', '28: fabric.require[1].latency: got "< 80 % of expected": '
     "fabric.links promises rates only, want a time such as 20 s"),
    # Scaling
    ("points: [1, 2, 4]", "points: [1, 4, 4]", ["31: scaling.points[2]: got 4 after 4, want node counts in rising "
     "order"]),
    ("points: [1, 2, 4]", "points: [1, 4]", "36: scaling.require[0].nodes: got 2, want one of scaling.points 1, 4"),
    ("points: [1, 2, 4]", "points: [2, 4]",
     "36: scaling.require[0].nodes: got 2, the baseline that efficiency compares with; want more nodes"),
    ("points: [1, 2, 4]", "points: [0, 2]", "31: scaling.points[0]: got 0, want at least 1"),
    ("warmup_steps: 2", "warmup_steps: -1", "33: scaling.warmup_steps: got -1, want at least 0"),
    # Full run; more of it in test_project_full_run.py
    ("recovery:", "recovry:", "43: full_run.require[1].recovry: unknown key; did you mean recovery? want one of "
     "layout, " + ", ".join(QUANTITIES["full_run"])),
    # The layouts of a criterion
    ("layouts: [fsdp-ac]", "layouts: [fsdp]",
     '40: full_run.layouts[0]: got "fsdp", did you mean fsdp-ac? want one of ddp, fsdp-ac'),
    ("layouts: [fsdp-ac]", "layouts: []", "40: full_run.layouts: got an empty list, want at least 1 item(s)"),
    ("layouts: [fsdp-ac]", "layouts: [ddp, ddp]", '40: full_run.layouts[1]: got "ddp" again, want each once'),
    ("  repeats: 7", "  layouts: [fsdp-ac]", '37: scaling.require[1].layout: got "ddp", want one of fsdp-ac'),
    # Exceptions
    ("until: 2027-03-01", "until: 2027-02-30", '45: exceptions[0].until: got "2027-02-30", want a date such as '
     '2027-03-01'),
    ("until: 2027-03-01", "until: 20270301", "45: exceptions[0].until: got 20270301, want a date such as 2027-03-01"),
    ('reason: "switch firmware, ticket 4711"', 'reason: ""', '45: exceptions[0].reason: got "", want a text of '
     'printable '
     "characters on one line"),
    # The topology
    ("gpus_per_node: 8", "gpus_per_node: -1", "47: topology.gpus_per_node: got -1, want at least 0"),
    ("gpus_per_node: 8", 'gpus_per_node: ">= 8"', '47: topology.gpus_per_node: got ">= 8", want a whole number'),
    ("gpus_per_node: 8", "gpu_per_node: 8", "47: topology.gpu_per_node: unknown key; did you mean gpus_per_node? want "
     "one of gpus_per_node, gpu, gpu_memory, nics_per_node, nic_rate, mtu, cores_per_node, numa_nodes, memory, "
     "clock_tolerance"),
    ("gpu: H100", "gpu: [H100, H200]", "48: topology.gpu: got a list, want a text"),
    ("gpu: H100", 'gpu: ""', '48: topology.gpu: got "", want a text of printable characters on one line'),
    ('gpu_memory: ">= 80 GB"', "gpu_memory: 80 GB", '49: topology.gpu_memory: got "80 GB", want "<op> <number> <unit>" '
     "with <=, >=, < or > and a size such as 64 MiB"),
    ('gpu_memory: ">= 80 GB"', "gpu_memory: 80", '49: topology.gpu_memory: got 80, want "<op> <number> <unit>" with '
     "<=, >=, < or > and a size such as 64 MiB"),
    ('nic_rate: ">= 400 Gbit/s"', 'nic_rate: ">= 400 Gbit"', '51: topology.nic_rate: got "400 Gbit", want a rate such '
     "as 300 GB/s"),
    ('nic_rate: ">= 400 Gbit/s"', 'nic_rate: ">= 0 Gbit/s"', '51: topology.nic_rate: got ">= 0 Gbit/s", want a level '
     "above zero"),
    ("mtu: 4092", "mtu: 0", "52: topology.mtu: got 0, want at least 1"),
    ("numa_nodes: 4", "numa_nodes: 4.0", "54: topology.numa_nodes: got 4.0, want a whole number"),
    ("clock_tolerance: 5 %", "clock_tolerance: 5", "56: topology.clock_tolerance: got 5, want a share above 0 % and "
     "below 100 %"),
    ("clock_tolerance: 5 %", "clock_tolerance: some", '56: topology.clock_tolerance: got "some", want a share or ratio '
     "such as 80 % or 0.8"),
    # The text itself
    ("project: demo", "project: demo\nproject: again", "3: project: the key is written twice, first in line 2; want "
     "it once"),
    ("layers: 4,", "layers: 4, layers: 5,", "5: workload.model.layers: the key is written twice, first in line 5; "
     "want it once"),
    ("project: demo", "project: demo\n2: x", "3: got 2 as a key, want a name"),
    ("project: demo", "project: demo\n? [a]\n: x", "3: got a list or mapping as a key, want a name"),
    ("project: demo", "project: &name demo", "2: got the anchor &name, want none: anchors are not read here"),
    ("project: demo", "project: *name", "2: got the alias *name, want the value itself: aliases are not read here"),
    ("project: demo", "project: !!python/object/apply:os.getcwd []", "2: got the tag "
     "tag:yaml.org,2002:python/object/apply:os.getcwd, want a plain value: tags are not read here"),
    ("project: demo", "project: demo: x", "2: not YAML: mapping values are not allowed here"),
    ("project: demo", "project: [demo", "3: not YAML: while parsing a flow sequence, expected ',' or ']', but got ':'"),
    ("project: demo", "project: a\x07b", r"2: not YAML: character '\x07' is not allowed"),
    ("project: demo", r'project: "\UFFFFFFFF"', r"2: not YAML: an escape such as \U names no character"),
    ("project: demo", "project: " + "[" * 30 + "]" * 30, "2: not YAML: nested deeper than 16 levels"),
    ("project: demo", "project: demo\n--- \nx: y", "3: not YAML: expected a single document in the stream, "
     "but found another document"),
]  # fmt: skip

BAD_FILES: list[tuple[str | bytes, str]] = [
    ("", ": the file is empty, want version, project, workload and layouts"),
    ("  \n\n", ": the file is empty, want version, project, workload and layouts"),
    ("# nothing\n", f":1: got null, want a mapping with the keys {KEYS}"),
    ("- version: 1\n", f":1: got a list, want a mapping with the keys {KEYS}"),
    ("version 1\n", f':1: got "version 1", want a mapping with the keys {KEYS}'),
    (b"version: 1\nproject: \xff\n", ":2: not UTF-8 text; save it as UTF-8, or point to the project file with "
     "--qual-config FILE"),
    ("#" * (LARGEST + 1), ": larger than 256 KiB, which no project file is; point to the project file with "
     "--qual-config FILE"),
    (SMALL.replace("layouts: [{name: ddp}]\n", ""), ":1: layouts: the key is missing"),
    (SMALL.replace("[{name: ddp}]", "[]"), ":12: layouts: got an empty list, want at least one layout such as "
     "{name: ddp}"),
    (SMALL.replace("[{name: ddp}]", "ddp"), ':12: layouts: got "ddp", want a list'),
    (SMALL.replace("[{name: ddp}]", "null"), ":12: layouts: got null, want a list"),
    (SMALL + "memory:\n", ":13: memory: got null, want a mapping: {} for the defaults, or no such key to leave "
     "it out"),
    (SMALL + "topology:\n", ":13: topology: got null, want a mapping of keys to values"),
    (SMALL + "memory: {require: {}}\n", ":13: memory.require: got an empty mapping, want a list"),
    (SMALL + "memory: {require: [[]]}\n", ":13: memory.require[0]: got an empty list, want a mapping of keys to "
     "values"),
    (SMALL + "scaling: {points: [1], require: [{speedup: '> 1'}]}\n", ":13: scaling.require[0].speedup: there is "
     "nothing to compare with the baseline of 1 node(s), want a second scaling.points"),
    (SMALL + "scaling: {launches: 7}\n", ":13: scaling.launches: got 7, want at most the 6 repeats"),
    (SMALL + "scaling: {require: [{time_to_train: '< 1 h'}]}\n", ":13: scaling.require[0].time_to_train: it is not "
     "known how much there is to train, want a target: {tokens: 2.0e+9, time: 40 h}"),
    (SMALL + "scaling: {waterfall: false, require: [{waiting: '< 5 %'}]}\n", ":13: scaling.require[0].waiting: no "
     "step is taken apart to measure it, want scaling.waterfall: true"),
    (SMALL + "scaling: {require: [{nodes: 1, exposed_communication: '< 5 %'}]}\n", ":13: scaling.require[0].nodes: "
     "got 1, the baseline, whose step is not taken apart; want more nodes"),
    (SMALL + "full_run: {}\n", ":13: full_run.checkpoint.every: got 10, want at most the 3 steps of the run, else "
     "nothing is ever saved"),
    (SMALL + "<<: {steps: 3}\n", f':13: "<<": unknown key; want one of {KEYS}'),
    (SMALL + '"a\\nb": 3\n', f':13: "a\\nb": unknown key; want one of {KEYS}'),
    (SMALL + "launcher: {device: " + "x" * 99 + "}\n", f':13: launcher.device: got "{"x" * 55}...", want auto, '
     "cpu or cuda"),
    (SMALL + 'fabric: {require: [{busbw: "> 1 % of expected"}], groups: [intra_node], links: {nic: 1 GB/s}}\n',
     ':13: fabric.require[0].busbw: got "> 1 % of expected" but no fabric.links.intra_node, want what was promised '
     "there, such as intra_node: 400 Gbit/s"),
    (SMALL.replace("seed: 0", 'seed: 0\n  data: {path: "\\0"}'), ':12: workload.data.path: got "\\u0000", want a '
     "text of printable characters on one line"),
]  # fmt: skip
