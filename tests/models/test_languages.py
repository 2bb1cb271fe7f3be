"""The language of captions."""

from raycomp.models.parser import name_language


def test_plain_sentences():
    for text, language in [
        ("A brown dog runs over the wet grass with a ball", "en"),
        ("Ein brauner Hund rennt mit einem Ball \u00fcber das nasse Gras", "de"),
        ("Un chien brun court dans l'herbe mouill\u00e9e avec un ballon", "fr"),
        ("\u4e00\u53ea\u68d5\u8272\u7684\u72d7\u5728\u6e7f\u8349\u5730\u4e0a\u5954\u8dd1", "zh"),
    ]:
        assert name_language(text) == language, (text, language)


def test_texts_without_letters_have_none():
    for text in ["", "  ", "123 456", "!?", "\U0001f600"]:
        assert name_language(text) is None, text
