"""Say whether a figure is normal: the band in which it lies on comparable machines.

Comparable machines agree in every setting that may change the figure: accelerator, number of devices, model, precision,
batch, data and so on. The band is over machines, not over jobs; it needs three. Figures come from the documents that
come with steelyard, from imported results (steelyard import) and from the other nodes in the results folder.

$ steelyard expect resnet50 --device A100 --batch 64 --precision bf16 --value 2130
$ steelyard expect all-reduce --metric bus_bandwidth --devices 16 --value "338 GB/s"
"""

from steelyard.cli.arguments import add_common, stated, whole, within
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("workload", metavar="WORKLOAD", help="workload or model, as results name it")
    parser.add_argument("--device", metavar="NAME", help="accelerator, or a part of its name: A100")
    parser.add_argument("--batch", type=within(whole, ge=1), metavar="N", help="samples per device")
    parser.add_argument("--precision", metavar="NAME", help="number format")
    parser.add_argument("--devices", type=within(whole, ge=1), metavar="N", help="devices of the job")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=stated,
        metavar="KEY=VALUE",
        dest="stated",
        help="any other setting, such as mode=infer; may be repeated",
    )
    parser.add_argument(
        "--metric", default="throughput", metavar="NAME", help="figure to ask for (default %(default)s)"
    )
    parser.add_argument("--value", metavar="X", help="your figure, such as 2130 or '2130 images/s'")
    add_common(parser)
