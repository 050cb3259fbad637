"""The contenders, one file per store. What a step and a read are is said by `base.Contender`."""
