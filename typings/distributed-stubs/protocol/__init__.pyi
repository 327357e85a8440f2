# SPDX-License-Identifier: BSD-3-Clause
from distributed.protocol.serialize import Serialize as Serialize
