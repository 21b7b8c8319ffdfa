// Precompiled for every unit test.
#pragma once

#include "base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
