"""The shipped experiments and their data. `everstep experiments` lists them; nothing is loaded before one is asked for.

zoo.py                 registers all but those of `bct` and `hub`
mnist.py               digits: experiments on the data that ships
mnist_task.py          their task
mnist_data.py          their data
distilled_task.py      a small student and a teacher
images.py              `image/folder`, a classifier of images in files: its configuration
images_task.py         its task and its network
multitask.py           two tasks with one model
multitask_task.py      these tasks
regression.py          a curve through noisy points
regression_task.py     its task
text.py                a language model on sums, and a tagger of names
sums.py                the sums, and their task
sentences.py           the sentences, and their task
transformer.py         a plain transformer
transformer_config.py  its shape
gpt2.py                language models of the shape of GPT-2
gpt2_task.py           their task and data
gpt2_config.py         their shape
bct/                   backward-compatible training
hub/                   KerasHub models
"""
