#include "criterion/criterion.h"
