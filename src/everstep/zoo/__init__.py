"""The shipped experiments. Importing it registers them; it imports no Keras."""

from everstep.zoo import mnist as mnist
from everstep.zoo import multitask as multitask
from everstep.zoo import regression as regression
from everstep.zoo import tags as tags
from everstep.zoo import text as text
