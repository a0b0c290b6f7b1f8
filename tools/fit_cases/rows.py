"""The rows of `docs/reference/fit.md` that explain why a case has other results: their first cells."""

# of the model and what it is compiled with
ASSIGNED = "trainable weights that a layer assigns as it is called, such as `SpectralNormalization`"
COUNTS = "`TruePositives()` and other counts on PyTorch, with validation data"
DROPOUT = "`Dropout` on PyTorch"
EMBEDDINGS = "gradient of an embedding on TensorFlow"
EMPTIED = "weights that a callback reads after a batch, on JAX"
MASKS = "training metrics of masked models"
OUTPUTS = "losses of single outputs, a short last batch"
ROUNDING = "weights whose gradient is zero but for rounding, with Adam"
STATEFUL = "a stateful RNN"

# of the data
GENERATOR_ENDS = "a generator that ends while epochs are left"
GENERATOR_READS_ON = "a generator as `validation_data`, several epochs, with `validation_steps`"
GENERATOR_TWICE = "a generator as `validation_data`, several epochs, no `validation_steps`"
HOOKS = "a `PyDataset` with `on_epoch_begin` or `on_epoch_end`"
LOADER = "a PyTorch `DataLoader` that shuffles"
NUMPY_RANDOM = "a `PyDataset` that draws from `random` or `np.random`"
ORDER = "order of shuffled arrays, and of the batches of a shuffled `PyDataset`"
PASSES = "`tf.data` with `shuffle(…, seed=…)` that reshuffles each pass"
UNKNOWN_LENGTH = "the end of data without a length, on TensorFlow"
WORKERS = "a `PyDataset` with `workers`"

# of the arguments
CLASS_WEIGHT = "`class_weight`"
INITIAL_EPOCH = "`initial_epoch`"
