# SPDX-License-Identifier: Apache-2.0
"""Layers beside attention: rotary embedding."""
