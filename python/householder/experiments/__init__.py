"""The command line ``householder train TASK`` and the experiments behind it.

Each room has one purpose: ``tasks`` hold data, loss and metric; ``models`` the networks; ``configs``
the settings of each experiment; ``training`` the loop; ``launch`` runs several models side by side;
``figures`` draws. ``cli`` is the front door.
"""
