"""Names of logs are searched for secrets once, and again when a secret is learned."""

from everstep import redaction


def test_a_name_is_hidden_as_soon_as_its_secret_is_known():
    assert redaction.name("loss_of_quartz9731") == "loss_of_quartz9731"
    redaction.remember("quartz9731")
    assert redaction.name("loss_of_quartz9731") == redaction.text("loss_of_quartz9731") != "loss_of_quartz9731"
    assert redaction.name("accuracy") == "accuracy"
