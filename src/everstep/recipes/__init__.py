"""The shipped experiments and their data. `everstep experiments` lists them; nothing is loaded before one is asked for.

zoo.py                 registers all but those of `bct` and `hub`
mnist.py               `mnist/…`: configuration and defaults of experiments on digits
mnist_task.py          their task: model, metrics
mnist_data.py          their data, as shipped
distilled_task.py      `mnist/distilled`: a small student, and where its teacher comes from
images.py              `image/folder`, a classifier of images in files: its configuration and defaults
images_task.py         its task and its network
multitask.py           `multitask/digits`: configuration of two tasks with one model
multitask_task.py      these tasks
regression.py          `regression/sine`: configuration
regression_task.py     its task
text.py                `text/tiny` and `text/tags`: configuration
sums.py                `text/tiny`: the sums, and their task
sentences.py           `text/tags`: the sentences, and their task
transformer.py         a plain transformer
transformer_config.py  its shape: width, depth, heads
gpt2.py                `text/gpt2_…`: configuration and training settings
gpt2_task.py           their task and data: files of tokens, packed texts, the model
gpt2_config.py         their shape: vocabulary, context, layers
bct/                   backward-compatible training
hub/                   KerasHub models
"""
