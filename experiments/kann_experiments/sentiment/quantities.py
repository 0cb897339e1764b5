"""What the sentiment experiment measures, in the order of its table."""

from kann_experiments import trusting
from kann_experiments.results import Quantity
from kann_experiments.sentiment.literal import literal_quantities, rank_quantities
from kann_experiments.sentiment.renn import QUANTITIES as RENN
from kann_experiments.sentiment.stand_ins import stand_in_quantities

LIVE = (
    Quantity(key="live_reviews", what="test reviews judged in the running network"),
    Quantity(key="live_one", what="held on one balanced coordinate: decisions kept", format="percent"),
    Quantity(key="live_one_mode", what="    on the mode with the largest contribution", format="percent"),
    Quantity(key="live_one_readout", what="    on the direction of the readout", format="percent"),
    Quantity(key="live_one_pca", what="    on the first principal component", format="percent"),
    Quantity(
        key="live_one_random", what="    on a random direction of the same variance, three draws", format="percent"
    ),
    Quantity(key="live_none", what="    at the mean state", format="percent"),
    Quantity(key="live_one_lead", what="    balanced above the better of readout and component by", format="percent"),
    Quantity(key="live_accuracy", what="accuracy of the untouched network on these reviews", format="percent"),
    Quantity(key="live_one_accuracy", what="    held on the balanced coordinate", format="percent"),
    Quantity(key="live_removed", what="without that coordinate: decisions kept", format="percent"),
    Quantity(key="live_removed_readout", what="    without the direction of the readout", format="percent"),
    Quantity(key="live_removed_pca", what="    without the first principal component", format="percent"),
    Quantity(key="live_removed_random", what="    without a random direction, three draws", format="percent"),
    *(
        Quantity(key=f"live_{kind}_{count}", what=f"{indent}{count} {what}", format="percent")
        for count in (2, 4, 8, 16)
        for kind, indent, what in (
            ("balanced", "", "balanced coordinates kept"),
            ("modes", "    ", "modes, largest contribution first"),
            ("pca", "    ", "principal components"),
        )
    ),
    *(
        Quantity(
            key=f"live_learned_{start}_{count}", what=f"{count} learned by gradient, from {what}", format="percent"
        )
        for count in (1, 2, 4)
        for start, what in (("balanced", "the balanced ones"), ("random", "random ones"))
    ),
    Quantity(key="live_needs_balanced", what="balanced coordinates that keep 95 % of the decisions, of 1, 2, 4, 8, 16"),
    Quantity(key="live_needs_modes", what="    modes"),
    Quantity(key="live_needs_pca", what="    principal components"),
    Quantity(
        key="live_groups_split", what="one group kept decides negative, the other positive, both live", format="percent"
    ),
    Quantity(key="live_group_negative", what="decisions kept by the negative group of modes alone", format="percent"),
    Quantity(key="live_group_positive", what="    by the positive group alone", format="percent"),
    Quantity(key="live_groups", what="    by both together", format="percent"),
    Quantity(key="live_groups_random", what="    by as many random directions, three draws", format="percent"),
    Quantity(key="live_group_negative_removed", what="decisions kept without the negative group", format="percent"),
    Quantity(key="live_group_positive_removed", what="    without the positive group", format="percent"),
    Quantity(key="live_groups_removed", what="    without both", format="percent"),
    Quantity(key="live_groups_random_removed", what="    without as many random directions", format="percent"),
    Quantity(key="words_mode", what="flipped: a tenth of words deleted, by push of the coordinate", format="percent"),
    Quantity(key="words_logit", what="    by change of the logit", format="percent"),
    Quantity(key="words_gradient", what="    by gradient × input", format="percent"),
    Quantity(key="words_integrated", what="    by integrated gradients", format="percent"),
    Quantity(key="words_random", what="    at random", format="percent"),
)
"""What is measured while the network runs with its state replaced, and with words deleted."""

QUANTITIES = (
    Quantity(key="accuracy_train", what="accuracy, training", format="percent"),
    Quantity(key="accuracy_validation", what="accuracy, validation", format="percent"),
    Quantity(key="accuracy_test", what="accuracy, test", format="percent"),
    Quantity(key="accuracy_words", what="    of the bag of words", format="percent"),
    Quantity(key="slow_eigenvalues", what="eigenvalues of modulus above .99"),
    Quantity(key="modulus_1", what="    modulus of the first"),
    Quantity(key="modulus_2", what="    of the second"),
    Quantity(key="modulus_3", what="    of the third"),
    Quantity(key="modulus_4", what="    of the fourth"),
    Quantity(key="trusted", what="    eigenvalues with a residual up to 0.1, fitted sequences"),
    *trusting.quantities("centred", "the centred operator, without padding"),
    *trusting.quantities("words", "the operator that reads the words, rank 16"),
    Quantity(key="relative_error", what="relative error of one step, padded steps, fitted sequences"),
    Quantity(key="relative_error_by_time", what="    |H_t predicted − H_t|² / |H_t|², mean over t"),
    Quantity(key="relative_error_held_out", what="    held-out reviews, same operator"),
    Quantity(key="relative_error_copying", what="    held-out reviews, copying the previous state"),
    Quantity(key="relative_error_real", what="relative error, words alone, fitted sequences"),
    Quantity(key="relative_error_real_held_out", what="    held-out reviews, same operator"),
    Quantity(key="relative_error_real_copying", what="    held-out reviews, copying the previous state"),
    Quantity(key="relative_error_padding", what="relative error, padding alone, fitted sequences"),
    Quantity(key="relative_error_padding_held_out", what="    held-out reviews, same operator"),
    Quantity(key="relative_error_padding_copying", what="    held-out reviews, copying the previous state"),
    Quantity(key="padding", what="    fraction of the padded steps that is padding", format="percent"),
    Quantity(key="relative_error_whole", what="relative error, all words of the test set, fitted without padding"),
    Quantity(key="relative_error_driven", what="    driven by the words"),
    Quantity(key="relative_error_whole_copying", what="    copying the previous state"),
    Quantity(key="agreement", what="agreement over the whole test set", format="percent"),
    Quantity(key="agreement_unpadded", what="    fitted without padding", format="percent"),
    Quantity(key="agreement_copying", what="    copying the last state but one", format="percent"),
    Quantity(key="agreement_every_padded", what="agreement after every word of the test set", format="percent"),
    Quantity(key="agreement_every_unpadded", what="    fitted without padding", format="percent"),
    Quantity(key="agreement_every_driven", what="    driven by the words", format="percent"),
    Quantity(key="agreement_every_copying", what="    copying the previous state", format="percent"),
    Quantity(
        key="groups_split_sentiment", what="reviews where one group reads negative, one positive", format="percent"
    ),
    *literal_quantities(),
    Quantity(key="sentiment_kept", what="reviews whose sign the padding leaves as it was", format="percent"),
    Quantity(key="slow_unpadded", what="eigenvalues above .99, fitted without padding"),
    Quantity(key="padding_distance", what="    distance of the leading four from those with padding"),
    Quantity(key="positive_words", what="positive words that are highlighted, a_p", format="percent"),
    Quantity(key="positive_any", what="    any word, to compare", format="percent"),
    Quantity(key="negative_words", what="negative words that are highlighted, a_n", format="percent"),
    Quantity(key="negative_any", what="    any word, to compare", format="percent"),
    Quantity(key="positive_best", what="a_p of the best of the leading modes, chosen on the batch", format="percent"),
    Quantity(key="positive_any_best", what="    any word, to compare", format="percent"),
    Quantity(key="negative_best", what="a_n of the best of the leading modes, chosen on the batch", format="percent"),
    Quantity(key="negative_any_best", what="    any word, to compare", format="percent"),
    Quantity(key="positive_unpadded", what="a_p, fitted without padding", format="percent"),
    Quantity(key="positive_any_unpadded", what="    any word, to compare", format="percent"),
    Quantity(key="negative_unpadded", what="a_n, fitted without padding", format="percent"),
    Quantity(key="negative_any_unpadded", what="    any word, to compare", format="percent"),
    Quantity(key="positive_up", what="positive words that raise the logit (signed)", format="percent"),
    Quantity(key="any_up", what="    any word, to compare", format="percent"),
    Quantity(key="negative_down", what="negative words that lower the logit (signed)", format="percent"),
    Quantity(key="any_down", what="    any word, to compare", format="percent"),
    Quantity(key="contribution_gap", what="largest gap between the sum of all contributions and the logit"),
    Quantity(key="one_mode", what="reviews that one mode decides as the network does", format="percent"),
    Quantity(key="one_mode_variance", what="    variance of its contribution over the logit's"),
    Quantity(key="one_mode_correlation", what="    correlation of its contribution with the logit"),
    Quantity(key="three_modes", what="reviews that three modes decide as the network does", format="percent"),
    Quantity(key="surrogate_best", what="driven linear system in place of the network: agreement", format="percent"),
    Quantity(key="surrogate_best_accuracy", what="    its accuracy", format="percent"),
    Quantity(key="surrogate_small", what="    agreement, best rank up to 16", format="percent"),
    Quantity(key="surrogate_small_rank", what="    that rank"),
    Quantity(key="surrogate_small_accuracy", what="    its accuracy", format="percent"),
    Quantity(key="surrogate_16", what="    agreement, rank 16", format="percent"),
    Quantity(key="surrogate_4", what="    agreement, rank 4", format="percent"),
    Quantity(key="surrogate_1", what="    agreement, rank 1", format="percent"),
    *stand_in_quantities(),
    Quantity(key="relative_error_svd", what="relative error, SVD basis, fitted sequences"),
    Quantity(key="relative_error_svd_held_out", what="    held-out reviews (copying: see above)"),
    Quantity(key="relative_error_pca", what="relative error, PCA basis, fitted sequences"),
    Quantity(key="relative_error_pca_held_out", what="    held-out reviews (copying: see above)"),
    Quantity(key="relative_error_fourier", what="relative error, Fourier basis, fitted sequences"),
    Quantity(key="relative_error_fourier_held_out", what="    held-out reviews (copying: see above)"),
    *rank_quantities(),
    Quantity(key="eigenvalue_distance_pca", what="dominant eigenvalues, PCA: distance from SVD's"),
    Quantity(key="eigenvalue_distance_fourier", what="dominant eigenvalues, Fourier: distance from SVD's"),
    Quantity(key="paths_end_alike", what="shuffled reviews: operator ends on the network's side", format="percent"),
    Quantity(key="paths_right", what="shuffled reviews: the network ends on the right side", format="percent"),
    Quantity(key="group_1", what="important modes that respond most to single words"),
    Quantity(key="group_2", what="    to two words"),
    Quantity(key="group_3", what="    to three words"),
    Quantity(key="pair_group_2", what="    of the operator of the pairs alone, to two words"),
    *RENN,
    *LIVE,
)
