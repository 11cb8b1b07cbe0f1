"""The tasks, models and metrics of the training command in words, for texts that load no heavy library."""

TASKS = {
    "addition": "add the two marked numbers of a long sequence",
    "audio": "reproduce 18 ms of sound; without --data, of a synthesised chord",
    "chars": "predict the next character of a line; without --data, of Python's documentation",
    "copy": "repeat ten symbols after a long delay",
    "digits": "classify scikit-learn's handwritten digits, read pixel by pixel",
    "mnist": "classify MNIST, read pixel by pixel; needs --data",
    "permuted-mnist": "classify MNIST with the pixels in one random order; needs --data",
    "recall": "recall the value of each key",
    "tracking": "multiply the permutations of a sequence",
}
"""A line for each task, for help texts."""

MODELS = {
    "ornn": "orthogonal RNN, a product of Householder reflections",
    "ornn-soft": "orthogonal RNN with n reflections, where one direction may shrink",
    "unitary": "unitary RNN, a product of complex reflections and phases",
    "lstm": "LSTM of torch.nn",
    "srnn": "simple RNN of torch.nn",
    "srnn-orthogonal": "simple RNN of torch.nn with an orthogonal recurrence at the start",
    "irnn": "simple RNN of torch.nn with the identity at the start, Le et al. (2015)",
    "free-rnn": "simple RNN of any nonlinearity with an orthogonal recurrence at the start",
    "urnn": "unitary RNN of Arjovsky et al. (2016)",
    "rc-urnn": "the network of urnn, its matrix formed once per sequence",
    "fc-urnn": "unitary RNN of Wisdom et al. (2016), trained by Cayley steps",
    "lie-rnn": "unitary RNN of Hyland and Rätsch (2017), a matrix exponential",
    "usv": "factorised RNN of Vorontsov et al. (2017), singular values near one",
    "delta": "linear attention by the delta rule, with an input-dependent reflection per step",
    "gated-delta": "delta with a decay",
    "delta-product": "delta with two reflections per step",
}
"""A line for each kind of model, for help texts."""

_TITLES = {
    "ornn": "orthogonal RNN",
    "ornn-soft": "orthogonal RNN, soft",
    "unitary": "unitary RNN",
    "lstm": "LSTM",
    "srnn": "simple RNN",
    "srnn-orthogonal": "simple RNN, orthogonal start",
    "irnn": "simple RNN, identity start",
    "free-rnn": "orthogonal start, no constraint",
    "urnn": "unitary RNN, Arjovsky et al.",
    "rc-urnn": "the same, formed",
    "fc-urnn": "unitary RNN, Wisdom et al.",
    "lie-rnn": "unitary RNN, Hyland and Rätsch",
    "usv": "factorised RNN",
    "delta": "delta rule",
    "gated-delta": "gated delta rule",
    "delta-product": "delta rule, two reflections",
}

_METRICS = {"loss_ratio": "loss ratio", "mse": "MSE", "nmse": "NMSE"}


def model_title(name: str) -> str:
    """Return what a figure calls a model of an experiment; one that is no kind has its name alone.

    Examples
    --------
    >>> from householder_experiments.catalogue import model_title
    >>> model_title("ornn"), model_title("ornn-1000")
    ('orthogonal RNN (ornn)', 'ornn-1000')
    """
    return f"{_TITLES[name]} ({name})" if name in _TITLES else name


def metric_title(name: str) -> str:
    """Return what tables and figures call a metric."""
    return _METRICS.get(name, name)
