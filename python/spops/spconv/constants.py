# SPDX-License-Identifier: Apache-2.0
"""spconv.constants, as far as networks read them."""
ALL_WEIGHT_IS_KRSC = True
FILTER_HWIO = False
SAVED_WEIGHT_LAYOUT = "KRSC"
