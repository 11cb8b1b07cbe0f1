"""The tasks and models of the training command, one line each, for help texts that load no heavy library."""

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

MODELS = {
    "ornn": "orthogonal RNN, a product of Householder reflections",
    "ornn-soft": "orthogonal RNN with n reflections, where one direction may shrink",
    "unitary": "unitary RNN, a product of complex reflections and phases",
    "lstm": "LSTM of torch.nn",
    "srnn": "simple RNN of torch.nn",
    "srnn-orthogonal": "simple RNN of torch.nn with an orthogonal recurrence at the start",
    "irnn": "simple RNN of torch.nn with the identity at the start, Le et al. (2015)",
    "urnn": "unitary RNN of Arjovsky et al. (2016)",
    "rc-urnn": "the network of urnn, its matrix formed once per sequence",
    "fc-urnn": "unitary RNN of Wisdom et al. (2016), trained by Cayley steps",
    "lie-rnn": "unitary RNN of Hyland and Rätsch (2017), a matrix exponential",
    "usv": "factorised RNN of Vorontsov et al. (2017), singular values near one",
    "delta": "linear attention by the delta rule, with an input-dependent reflection per step",
    "gated-delta": "delta with a decay",
    "delta-product": "delta with two reflections per step",
}
