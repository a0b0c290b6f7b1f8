"""The shipped experiments, but those with packages of their own. Importing it registers them; it imports no Keras."""

from everstep.recipes import gpt2 as gpt2
from everstep.recipes import images as images
from everstep.recipes import mnist as mnist
from everstep.recipes import multitask as multitask
from everstep.recipes import regression as regression
from everstep.recipes import text as text
