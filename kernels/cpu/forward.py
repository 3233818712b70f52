"""The whole forward of an int8 model in one compiled call, which every thread of a team enters.

Threads take pieces of each phase and wait for each other between phases. Which thread does what changes nothing: an
output is computed by one of them, in an order of its own.
"""

from kernels.cpu.attention.phases import attention, qkv_products
from kernels.cpu.emit import kernel, read_record
from kernels.cpu.job import INNER, PHASES, STREAM, Job, Model
from kernels.cpu.lm_head import elect, head_products
from kernels.cpu.product_phases import gate_products, residual_product
from kernels.cpu.row_phases import last_rows, quantized_blocks, stream_rows


@kernel
def forward(thread, sync, model_table, job_table):  # type: ignore[no-untyped-def]
    """Addresses of the numbers of a `Model` and a `Job` (see `table_of`); called by `kernels.cpu.team.Team`."""
    model, job = read_record(model_table, Model), read_record(job_table, Job)
    scratch = job.scratch + thread * job.scratch_stride
    width = model.heads * model.dim
    for layer in range(job.layers):
        phase = layer * PHASES
        stream_rows(sync, phase, model, job, layer, scratch)
        quantized_blocks(sync, phase + 1, model, job, job.x, model.hidden, STREAM, thread)
        qkv_products(sync, phase + 2, model, job, layer, thread, scratch)
        attention(sync, phase + 3, model, job, layer, scratch)
        quantized_blocks(sync, phase + 4, model, job, job.mixed, width, INNER, thread)
        residual_product(sync, phase + 5, model, job, 4 * layer + 1, width, thread, scratch)
        quantized_blocks(sync, phase + 6, model, job, job.x, model.hidden, STREAM, thread)
        gate_products(sync, phase + 7, model, job, 4 * layer + 2, thread, scratch)
        quantized_blocks(sync, phase + 8, model, job, job.inner, model.inner, INNER, thread)
        residual_product(sync, phase + 9, model, job, 4 * layer + 3, model.inner, thread, scratch)
    phase = job.layers * PHASES
    if job.layers:
        last_rows(sync, phase, model, job)
    head_products(sync, phase + 1, model, job, thread, scratch)
    if thread == 0 and job.logits == 0:
        elect(job)
