"""The shipped experiments. Importing it registers them; it imports no Keras."""

from everstep.zoo import mnist as mnist
