"""What the client of S3 mends by itself, request by request, and what it cannot."""

import pytest

from raycomp.data.files import resolve
from tests.faults.proxy import FAULTS

SECRET = "testing-secret"
SEED = 3
DOWN = {"503": 1.0}


def test_every_fault_is_fixed_by_the_client(proxy, bucket):
    for fault in FAULTS:
        filesystem, path = resolve(f"{bucket}/small")
        data = bytes(range(256)) * 40
        # The client waits in vain once, then asks again.
        share, count = (0.1, 4) if fault == "timeout" else (0.3, 20)
        proxy.start({fault: share}, SEED)
        for i in range(count):
            with filesystem.open_output_stream(f"{path}/{i}") as stream:
                stream.write(data)
            with filesystem.open_input_file(f"{path}/{i}") as file:
                assert file.read() == data, fault
        assert proxy.faults()[fault] >= 1, fault


@pytest.mark.slow
def test_a_whole_outage_is_an_error_of_the_storage(proxy, bucket):
    filesystem, path = resolve(f"{bucket}/down")
    proxy.start(DOWN)
    with pytest.raises(OSError, match="AWS Error") as error:
        filesystem.get_file_info(path)
    assert SECRET not in str(error.value)
    assert len(proxy.seen) > 1
