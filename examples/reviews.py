"""What did a network that classifies film reviews learn? The first example of the README; needs no data."""

import kann
from kann import zoo

gru = zoo.load("sentiment")  # 256 units, trained on film reviews; it ships with kann
reviews, words, labels = gru.draw(120)  # numbers of the words, the words, "negative" or "positive"

found = kann.explain(gru.network, reviews, tokens=words, labels=labels, classes=["negative", "positive"])
print(found)
found.report("report.html")  # one page that opens offline
