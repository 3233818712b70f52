"""The whole forward of an int8 model in one compiled call, which every thread of a team enters.

Threads take pieces of each phase and wait for each other between phases. Which thread does what changes nothing: an
output is computed by one of them, in an order of its own.
"""

from kernels.cpu.attention_phases import attention, qkv_products
from kernels.cpu.emit import kernel
from kernels.cpu.head_phase import elect, head_products
from kernels.cpu.job import PHASES
from kernels.cpu.product_phases import gate_products, residual_product
from kernels.cpu.row_phases import last_rows, normed_stream, quantized_rows


@kernel
def forward(thread, sync, model, job):  # type: ignore[no-untyped-def]
    """See `Model` and `Job`; called by `kernels.cpu.threads.Team`."""
    scratch = job.scratch + thread * job.scratch_stride
    for layer in range(job.layers):
        phase = layer * PHASES
        normed_stream(sync, phase, model, job, layer, True)
        qkv_products(sync, phase + 1, model, job, layer, scratch)
        attention(sync, phase + 2, model, job, layer, scratch)
        quantized_rows(sync, phase + 3, model, job, job.mixed, model.heads * model.dim, False)
        residual_product(sync, phase + 4, model, job, 4 * layer + 1, model.heads * model.dim, scratch)
        normed_stream(sync, phase + 5, model, job, layer, False)
        gate_products(sync, phase + 6, model, job, 4 * layer + 2, scratch)
        quantized_rows(sync, phase + 7, model, job, job.inner, model.inner, True)
        residual_product(sync, phase + 8, model, job, 4 * layer + 3, model.inner, scratch)
    phase = job.layers * PHASES
    if job.layers:
        last_rows(sync, phase, model, job)
    head_products(sync, phase + 1, model, job, thread, scratch)
    if thread == 0 and job.logits == 0:
        elect(job)
