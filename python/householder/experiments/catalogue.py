"""The tasks and models of the training command, a line each, for help that needs no heavy library."""

TASKS = {
    "addition": "add the two marked numbers of a long sequence",
    "audio": "reproduce 18 ms of sound; without --data, of a synthesised chord",
    "chars": "predict the next character of a line; without --data, of Python's documentation",
    "copy": "repeat ten symbols after a long delay",
    "digits": "classify scikit-learn's handwritten digits, read pixel by pixel",
    "mnist": "classify MNIST, read pixel by pixel; needs --data",
    "permuted-mnist": "the same with the pixels in one random order; needs --data",
    "recall": "say which value came with each key",
    "tracking": "multiply the permutations of a sequence",
}

MODELS = {
    "ornn": "orthogonal RNN, a product of Householder reflections",
    "ornn-soft": "the same with n reflections, where one direction may shrink",
    "unitary": "unitary RNN, a product of complex reflections and phases",
    "lstm": "torch.nn.LSTM",
    "srnn": "torch.nn.RNN",
    "srnn-orthogonal": "torch.nn.RNN with an orthogonal recurrence at the start",
    "irnn": "torch.nn.RNN with ReLU and the identity at the start, of Le et al. (2015)",
    "urnn": "unitary RNN of Arjovsky et al. (2016)",
    "rc-urnn": "the same with its matrix formed once in a sequence",
    "fc-urnn": "unitary RNN of Wisdom et al. (2016), moved by Cayley steps",
    "lie-rnn": "unitary RNN of Hyland and Rätsch (2017), a matrix exponential",
    "usv": "factorised RNN of Vorontsov et al. (2017), singular values near one",
    "delta": "linear attention by the delta rule, a reflection a step that depends on the input",
    "gated-delta": "the same with a decay",
    "delta-product": "the same with two reflections a step",
}
