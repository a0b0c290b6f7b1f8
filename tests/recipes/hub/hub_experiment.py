"""A LoRA run for tests in processes of their own: `python hub_experiment.py PRESET TEXTS RUN [key=value …]`."""

import sys

import everstep as es

if __name__ == "__main__":
    preset, texts, run, *overrides = sys.argv[1:]
    params = es.get_exp_config("hub/causal_lm")
    data = {"input_path": texts, "global_batch_size": 4, "packing": True, "sequence_length": 48}
    params.override(
        {
            "task": {"preset": preset, "lora": {"rank": 2}, "train_data": data, "validation_data": data},
            "trainer": {
                "train_steps": 150,
                "steps_per_loop": 5,
                "validation_interval": 50,
                "checkpoint_interval": 5,
                "optimizer_config": {
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                    "warmup": {"type": None},
                },
            },
        }
    )
    task = es.get_task(params.task)
    es.run_experiment(task, params, run, export=False)
    print("tensorflow" in sys.modules)
